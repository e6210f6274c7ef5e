"""What a person looks at: the page, figures and tables. They read finished results and compute nothing new."""
