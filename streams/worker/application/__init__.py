"""What every thread of an application shares: settings, state, clients and tasks' factory."""
