"""The description of the REST side: an OpenAPI document made from the contracts, and a page that shows it."""
