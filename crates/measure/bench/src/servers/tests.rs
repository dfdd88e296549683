use super::*;

#[test]
fn each_burst_goes_to_the_server_of_its_state() {
    let of = |treatment| [false, true].map(|treated| server_of(Block::new(treatment, true), treated, 3));
    assert_eq!(of(Treatment::Arm(0)), [0, 1]);
    assert_eq!(of(Treatment::Arm(1)), [0, 2]);
    assert_eq!(of(Treatment::Control), [0, 3]);
    let second = Block { second_plain: true, ..Block::new(Treatment::Arm(1), false) };
    assert_eq!([false, true].map(|treated| server_of(second, treated, 3)), [3, 2]);
}

#[test]
fn servers_of_one_command_exchange_their_folders() {
    let folders: Vec<PathBuf> = ["0", "1", "2", "3"].map(PathBuf::from).to_vec();
    let servers = exchangeable(&[true, false]);
    assert_eq!(servers, [0, 1, 3]);
    let names = |order: &[usize]| {
        let exchanged = exchanged(&folders, &servers, order);
        exchanged.iter().map(|folder| folder.display().to_string()).collect::<String>()
    };
    assert_eq!((names(&[0, 1, 2]).as_str(), names(&[2, 0, 1]).as_str()), ("0123", "3021"));
}

#[test]
fn ports_are_free_and_differ() {
    let mut ports = free_ports(20).unwrap();
    assert!(ports.iter().all(|&port| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err()));
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 20);
}
