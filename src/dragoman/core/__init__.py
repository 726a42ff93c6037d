"""The neutral language of the server: what is asked, what is answered, what can go wrong. No I/O."""
