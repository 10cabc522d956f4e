"""Requests to the cluster beyond reading and writing."""
