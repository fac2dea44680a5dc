"""What every other package uses: errors, files, processes, seeds, weights."""
