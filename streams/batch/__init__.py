"""Tasks of an application in this process, without a broker."""
