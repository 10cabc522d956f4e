"""The suite `coordinator`: what leading a group costs as it grows, without a broker."""
