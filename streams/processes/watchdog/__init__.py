"""The watchdog process: represents a program's workers in their group (`PROTOCOL.md` H21).

It sends their heartbeats, detects hangs, and runs the group leader if elected.
"""
