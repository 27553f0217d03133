"""What several tests share: small cohorts and networks, folders like a hospital's, report cases. Imported as `support`."""
