"""HTTP of a worker: metrics, health, state and interactive queries; the parts the dashboard shares."""
