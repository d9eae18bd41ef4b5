//! Safe RDMA verbs: buffers move into the queue and come back with their completion
