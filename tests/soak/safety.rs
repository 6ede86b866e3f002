//! Other users, setuid programs, folders that are not ours: nothing is given away.
