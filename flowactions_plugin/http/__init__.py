"""What the routes share: problem details, authentication, and the frame of a router."""
