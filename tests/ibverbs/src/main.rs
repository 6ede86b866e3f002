//! Sends messages of several sizes over a queue pair that is connected with itself, from memory
//! that the crate ibverbs allocates and registers.

use ibverbs::{ibv_qp_type, ibv_wc, CompletionQueue};

const SIZES: [usize; 3] = [64, 4 << 10, 1 << 20];
/// Of the requests.
const SENT: u64 = 1;
const RECEIVED: u64 = 2;

fn main() {
    let devices = ibverbs::devices().expect("devices");
    let context = devices.get(0).expect("a device").open().expect("open");
    let queue = context.create_cq(8, 0).expect("a completion queue");
    let domain = context.alloc_pd().expect("a protection domain");
    let mut builder = domain.create_qp(&queue, &queue, ibv_qp_type::IBV_QPT_RC);
    let pair = builder.set_gid_index(1).build().expect("a queue pair");
    let itself = pair.endpoint();
    let mut pair = pair.handshake(itself).expect("a connection");
    for size in SIZES {
        let mut memory = domain.allocate::<u8>(2 * size).expect("memory");
        for (n, byte) in memory[size..].iter_mut().enumerate() {
            *byte = (n * 7 + size) as u8;
        }
        // SAFETY: the memory is touched again after both have completed.
        unsafe {
            let receive = pair.post_receive(&mut memory, ..size, RECEIVED);
            receive.expect("a receive");
            pair.post_send(&mut memory, size.., SENT).expect("a send");
        }
        complete(&queue);
        let (to, from) = memory.split_at(size);
        assert!(to == from, "{size} bytes came otherwise");
        println!("{size} bytes");
    }
}

/// Waits for one send and one receive.
fn complete(queue: &CompletionQueue<'_>) {
    let mut missing = SENT | RECEIVED;
    let mut some = [ibv_wc::default(); 4];
    while missing != 0 {
        for done in queue.poll(&mut some).expect("completions") {
            assert!(done.is_valid(), "{:?}", done.error());
            missing &= !done.wr_id();
        }
    }
}
