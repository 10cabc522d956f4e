"""Group membership of a worker: its member follows the group log and gives it orders."""
