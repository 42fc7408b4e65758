"""Messages to Alertmanager or a webhook: lasting shortages, ending reservations, spending caps reached."""
