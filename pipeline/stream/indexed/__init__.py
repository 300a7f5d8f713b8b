"""Readers of streams whose counts are known ahead: any sequence is found by arithmetic and read out of its block."""
