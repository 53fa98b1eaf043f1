"""The contracts' services, by translation to the domain: OpenAI, Inference and Admin."""
