def test_a_method_in_a_process_of_its_own(forked_process):
    printed = forked_process(
        """
        import unittest
        from lazy_runtime.torch_xla.test import test_utils as xtu

        class Case(unittest.TestCase):
            @xtu.mp_test
            def passes(self):
                self.seen = True

            @xtu.mp_test
            def fails(self):
                raise SystemExit(3)

        case = Case("passes")
        print(case.passes(), hasattr(case, "seen"), Case.passes.__name__)
        try:
            case.fails()
        except AssertionError as error:
            print(error)
        """
    )
    assert printed.splitlines() == ["0 False passes", "3 is not false : the process of the test has failed"]
