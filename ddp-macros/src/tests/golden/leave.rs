#[distributed]
fn unit() {
    if done() {
        return;
    }
    for x in xs {
        work(x);
    }
}

#[distributed]
fn unit_with_tail() -> () {
    finish(|| return 1)
}

#[distributed]
fn unit_with_macro() {
    println!("done")
}

#[distributed]
fn never(&self) -> ! {
    loop {
        self.superbatch()
    }
}

#[distributed]
fn value() -> Result<f64, Error> {
    let count = |n: i64| -> i64 { return n + 1 };
    if count(1) > 1 {
        return Err(Error::Empty);
    }
    match find() {
        Some(best) => Ok(best),
        None => return Ok(f64::try_from(&loss)?),
    }
}

#[distributed]
fn ends_in_a_panic() -> f64 {
    work();
    todo!("later")
}

#[distributed]
fn ends_in_a_return() -> f64 {
    return 1.0;
}

#[distributed]
fn ends_in_a_loop() -> f64 {
    loop {
        if done() {
            return 2.0;
        }
    }
}

#[distributed]
fn breaks_with_a_value() -> f64 {
    loop {
        if done() {
            break 2.0;
        }
    }
}

#[distributed]
fn chosen_by_cfg() -> f64 {
    #[cfg(feature = "cuda")]
    {
        1.0
    }
    #[cfg(not(feature = "cuda"))]
    {
        2.0
    }
}

#[distributed]
fn ends_the_process() {
    work();
    std::process::exit(0);
}

#[distributed]
fn left_alone() -> i64 {
    #[ddp(skip)]
    {
        println!("here");
        1
    }
}
