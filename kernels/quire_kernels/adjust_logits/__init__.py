"""What sequences ask to be done to their logits before the draw: bias, penalties, masks, forbidden tokens."""
