"""The neutral language of the house: what is asked, what is answered, what can go wrong. No I/O."""
