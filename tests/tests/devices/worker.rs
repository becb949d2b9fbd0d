//! What a worker does about a disk, a list or a neighbour that is not as it should be.
