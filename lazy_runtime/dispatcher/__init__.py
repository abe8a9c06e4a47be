"""What torch calls for xla tensors beside operators: factories, copies, storages, sparse tensors, moves."""
