//! The Open MPI BTL component verbs
