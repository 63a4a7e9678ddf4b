"""What encoders of pictures and of sound share: their contract, and the parts that they are made of."""
