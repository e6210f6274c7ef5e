"""Credits of other people's feedback layers, as `credit=` of `walkback.diagnose`: what their code needs."""
