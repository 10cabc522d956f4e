"""The member's side: orders it has, reports it sends."""
