"""From logits to tokens: masks, penalties, filters, counter-based draws, log-probabilities."""
