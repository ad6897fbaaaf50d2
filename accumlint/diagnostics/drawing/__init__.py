"""Pictures and pages: markup that escapes what is not its own, one style, and the drawing of a timeline."""
