"""EC2 with capacity reservations: moto's EC2 extended, one module a noun."""
