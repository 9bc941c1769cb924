"""Running a project for years: its status, deletion of an entity, backup and restore."""
