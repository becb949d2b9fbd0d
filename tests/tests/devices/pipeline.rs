//! What the master does about a stage that misbehaves.
