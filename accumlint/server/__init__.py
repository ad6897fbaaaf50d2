"""The language server: findings while typing, their story on hover, and their fixes as actions."""
