"""The page at `/`: a chat in the browser that shows what speculation does."""
