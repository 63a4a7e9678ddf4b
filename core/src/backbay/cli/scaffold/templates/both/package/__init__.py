"""The backend mybackend. Its entry point names the class in `backend`, which is imported when the backend is opened."""
