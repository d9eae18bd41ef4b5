//! The active messages of btl-core's example, the same handlers, on every device model.
#[path = "../../examples/active_messages.rs"]
#[allow(dead_code, unreachable_pub)]
mod example;

use btl_core::Nanos;
use btl_sim::Model;
use btl_sim::program::{Program, SimEngine, run};
use example::{Node, add, keep};

const CALLS: u64 = 60;
const RANKS: u64 = 3;
/// Additions that everyone asks of others, and others of it.
const ALL: u64 = CALLS * (RANKS - 1);
/// What they come to.
const SUM: u64 = (RANKS - 1) * CALLS * (CALLS + 1) / 2;

/// Adds to the sums of all others.
struct Adder(Node<btl_sim::program::SimPort, btl_sim::program::SimCm, (u64, Vec<u64>)>);

impl Program for Adder {
    fn poll(&mut self, now: Nanos) -> bool {
        self.0.step(now).expect("no peer fails")
    }

    fn is_done(&self) -> bool {
        self.0.state.0 == SUM && self.0.state.1.len() as u64 == ALL
    }
}

#[test]
fn the_handlers_of_the_example_run_on_every_model() {
    for model in Model::ALL {
        for seed in 0..20 {
            let done = run(model, seed, RANKS as u32, |_, engine: SimEngine, peers| {
                let mut node = Node::new(engine, Default::default(), vec![add, keep]);
                for n in 1..=CALLS {
                    for peer in peers.iter().flatten() {
                        node.send(*peer, (0, n.to_le_bytes().to_vec()));
                    }
                }
                Adder(node)
            });
            assert!(done.violations.is_empty(), "seed {seed} on {model}: {:?}", done.violations);
            assert_eq!(done.programs.len() as u64, RANKS);
        }
    }
}
