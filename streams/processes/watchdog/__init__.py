"""The watchdog process: the workers' voice in their group (`PROTOCOL.md` H21).

It sends their heartbeats, watches them, and runs the leader if elected.
"""
