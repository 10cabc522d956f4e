"""What one running application is made of: its threads, how they join a group, what can be asked of them."""
