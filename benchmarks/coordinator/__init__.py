"""The suite `coordinator`: cost of leading a group by its size, without a broker."""
