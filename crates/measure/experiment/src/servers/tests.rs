use super::*;

#[test]
fn each_burst_goes_to_the_server_of_its_state() {
    let of = |treatment| [false, true].map(|treated| server_of(treatment, treated, 3));
    assert_eq!(of(Treatment::Arm(0)), [0, 1]);
    assert_eq!(of(Treatment::Arm(1)), [0, 2]);
    assert_eq!(of(Treatment::Control), [0, 3]);
}

#[test]
fn ports_are_free_and_differ() {
    let mut ports = free_ports(20).unwrap();
    assert!(ports.iter().all(|&port| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err()));
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 20);
}
