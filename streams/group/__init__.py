"""What operators see of a group, and how it is set up again when its topics are lost: from the topics alone, no member is asked."""
