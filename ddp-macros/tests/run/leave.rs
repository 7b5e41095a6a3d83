//! Ways out of a function: which of them count as leaving it, and what types they carry.

use crate::__private::notes;
use ::std::error::Error;
use ::std::fmt::Display;
use ddp_macros::distributed;

/// What the scope noted at its end.
fn end() -> String {
    notes().pop().unwrap_or_default()
}

#[distributed]
fn by_question_mark(text: &str) -> Result<i64, Box<dyn Error>> {
    let number: i64 = text.parse()?;
    if number < 0 {
        return Err("negative".into());
    }
    if number > 9 {
        return Err(Box::new(::std::fmt::Error));
    }
    Ok(number)
}

#[test]
fn a_value_leaves_and_an_error_abandons_however_it_is_returned() {
    assert_eq!(by_question_mark("7").unwrap(), 7);
    assert_eq!(end(), "left");
    assert_eq!(by_question_mark("-7").unwrap_err().to_string(), "negative");
    assert_eq!(end(), "abandoned");
    assert!(by_question_mark("70").is_err());
    assert_eq!(end(), "abandoned");
    assert!(by_question_mark("x").is_err());
    assert_eq!(end(), "abandoned");
}

#[distributed]
fn unit(stop: bool) {
    if stop {
        return;
    }
    crate::__private::note("went on");
}

#[test]
fn a_unit_function_leaves() {
    unit(true);
    assert_eq!(notes(), ["enter unit", "left"]);
    unit(false);
    assert_eq!(notes(), ["enter unit", "went on", "left"]);
}

#[distributed]
fn unit_ends_in_a_match(n: i64) {
    match n {
        0 => crate::__private::note("none"),
        1 => {}
        _ => crate::__private::note("many"),
    }
}

#[distributed]
fn unit_ends_in_a_call() {
    crate::__private::note("end");
}

#[test]
fn a_unit_function_leaves_after_its_last_expression() {
    unit_ends_in_a_match(2);
    assert_eq!(notes(), ["enter unit_ends_in_a_match", "many", "left"]);
    unit_ends_in_a_call();
    assert_eq!(end(), "left");
}

#[distributed]
fn diverges(kind: u8) -> i64 {
    if kind == 0 { panic!("zero") } else { unreachable!("{kind}") }
}

fn fail() -> ! {
    panic!("fail")
}

#[distributed]
fn calls_what_diverges() -> i64 {
    fail()
}

#[distributed]
fn unit_calls_what_diverges(yes: bool) {
    match yes {
        true => fail(),
        false => fail(),
    }
}

#[distributed]
fn never() -> ! {
    loop {
        fail();
    }
}

#[test]
fn what_diverges_abandons() {
    for run in [
        || assert_eq!(diverges(0), 0),
        || assert_eq!(calls_what_diverges(), 0),
        || unit_calls_what_diverges(true),
        || never(),
    ] {
        assert!(::std::panic::catch_unwind(run).is_err());
        assert_eq!(end(), "abandoned");
    }
}

#[distributed]
fn coerces_to_a_trait_object(yes: bool) -> Box<dyn Display> {
    if yes {
        return Box::new(1);
    }
    Box::new("text")
}

#[distributed]
fn coerces_to_a_closure() -> Box<dyn Fn(&str) -> usize> {
    Box::new(|text| text.len() + 1)
}

#[distributed]
fn coerces_to_a_function() -> fn(i64) -> i64 {
    |x| x + 1
}

#[distributed]
fn coerces_to_a_slice(numbers: &[i64; 3]) -> &[i64] {
    numbers
}

#[distributed]
fn coerces_in_a_result() -> Result<Box<dyn Display>, Box<dyn Error + Send + Sync>> {
    Ok(Box::new(1))
}

#[distributed]
fn opaque(n: usize) -> impl Iterator<Item = usize> {
    (0..n).map(|x| x * 2)
}

#[distributed]
fn opaque_with_lifetime<'a>(words: &'a [&'a str], last: &'a str) -> impl Iterator<Item = &'a str> {
    words.iter().copied().filter(move |word| *word != last)
}

#[distributed]
fn infers_from_the_type() -> Vec<u8> {
    "abc".bytes().collect()
}

#[distributed]
fn breaks_with_a_value() -> i64 {
    let mut n = 0;
    loop {
        n += 1;
        if n == 3 {
            break n;
        }
    }
}

struct Model {
    weights: Vec<i64>,
}

impl Model {
    #[distributed]
    fn reborrows(&mut self) -> &mut i64 {
        let weights = &mut self.weights;
        &mut weights[0]
    }

    #[distributed]
    fn reborrows_a_parameter<'a>(&self, other: &'a mut Self) -> &'a mut Self {
        other.weights.clone_from(&self.weights);
        other
    }
}

#[test]
fn coercions_at_the_end_hold() {
    assert_eq!(coerces_to_a_trait_object(true).to_string(), "1");
    assert_eq!(coerces_to_a_trait_object(false).to_string(), "text");
    assert_eq!(coerces_to_a_closure()("four"), 5);
    assert_eq!(coerces_to_a_function()(1), 2);
    assert_eq!(coerces_to_a_slice(&[1, 2, 3]), [1, 2, 3]);
    assert_eq!(coerces_in_a_result().unwrap().to_string(), "1");
    assert_eq!(opaque(3).sum::<usize>(), 6);
    assert_eq!(opaque_with_lifetime(&["a", "b"], "b").collect::<String>(), "a");
    assert_eq!(infers_from_the_type(), b"abc");
    assert_eq!(breaks_with_a_value(), 3);
    let mut model = Model { weights: vec![1] };
    *model.reborrows() += 1;
    let mut other = Model { weights: vec![] };
    *model.reborrows_a_parameter(&mut other).reborrows() += 1;
    assert_eq!((model.weights[0], other.weights[0]), (2, 3));
}

#[distributed]
fn inner_returns() -> i64 {
    fn triple(x: i64) -> i64 {
        if x > 1 {
            return x * 3;
        }
        x
    }
    let double = |x: i64| -> i64 {
        if x > 1 {
            return x * 2;
        }
        x
    };
    crate::__private::note("inside");
    double(2) + triple(2)
}

#[test]
fn returns_of_closures_and_nested_functions_are_theirs() {
    assert_eq!(inner_returns(), 10);
    assert_eq!(notes(), ["enter inner_returns", "inside", "left"]);
}

#[distributed]
fn chosen() -> i64 {
    #[cfg(not(test))]
    {
        1
    }
    #[cfg(test)]
    {
        2
    }
}

#[test]
fn a_value_chosen_by_cfg_leaves() {
    assert_eq!(chosen(), 2);
    assert_eq!(end(), "left");
}

/// A name that does not say that it is a result.
type Outcome<T = i64> = Result<T, String>;

trait Job {
    type Done;
    fn job(&self, well: bool) -> Self::Done;
}

struct Fit;

impl Job for Fit {
    type Done = Outcome;

    #[distributed]
    fn job(&self, well: bool) -> Self::Done {
        if !well {
            return Err("badly".to_owned());
        }
        Ok(1)
    }
}

struct Held<'a>(&'a str);

#[distributed]
fn held(text: &str) -> Held<'_> {
    Held(text)
}

#[distributed]
fn aliased(well: bool) -> Outcome<Box<dyn ::std::fmt::Display>> {
    if well { Ok(Box::new(1)) } else { Err("badly".to_owned()) }
}

#[distributed]
fn any<T>(value: T) -> T {
    value
}

#[test]
fn results_under_other_names_are_results() {
    assert_eq!(Fit.job(true), Ok(1));
    assert_eq!(end(), "left");
    assert_eq!(Fit.job(false), Err("badly".to_owned()));
    assert_eq!(end(), "abandoned");
    assert_eq!(aliased(true).unwrap().to_string(), "1");
    assert_eq!(end(), "left");
    assert!(aliased(false).is_err());
    assert_eq!(end(), "abandoned");
    assert_eq!((held("a").0, end().as_str()), ("a", "left"));
    assert_eq!((any(1), end().as_str()), (1, "left"));
}
