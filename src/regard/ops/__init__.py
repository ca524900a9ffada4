"""Operations that have more than one implementation."""
