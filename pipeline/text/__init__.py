"""Raw text -> documents -> token ids: readers, normalisation and tokenizers, for the build and the stream alike."""
