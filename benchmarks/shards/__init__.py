"""The suite `shards`: one partition, computed by one worker or shared by two."""
