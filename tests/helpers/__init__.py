"""What tests of several rooms share: samples, servers that misbehave, interpreters that are loaded already."""
