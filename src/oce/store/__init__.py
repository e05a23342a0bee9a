"""PostgreSQL: tables, migrations, unit of work, work queue, audit. The only room that speaks SQL."""
