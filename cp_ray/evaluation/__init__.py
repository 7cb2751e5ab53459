"""Does reuse change the answers? The same questions with each switch alone, and all."""
