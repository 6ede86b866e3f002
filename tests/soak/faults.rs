//! Every system call that the shim makes fails: the program does not notice.
