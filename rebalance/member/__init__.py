"""The member: follows the group log and gives its worker orders."""
