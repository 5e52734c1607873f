"""What machines rented from any cloud share: how a launch is recorded, how they boot, how they are reached and end."""
