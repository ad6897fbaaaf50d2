"""What every part uses: frozen values, places in files, problems, progress and memoised answers."""
